"""What is learnt from a lake: profiles for the scaler, evidence for retries, arrivals for backtests."""
