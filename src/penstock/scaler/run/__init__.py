"""The running scaler: it collects signals, decides, and starts and stops workers."""
