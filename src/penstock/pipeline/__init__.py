"""History into a lake: bronze as it came, silver one row per attempt, gold what people ask."""
