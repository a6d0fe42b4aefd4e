"""How many workers: `collect → decide → act`. Deciding is pure; what it sees and what it says are values."""
