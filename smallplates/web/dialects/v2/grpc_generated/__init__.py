"""Made by `make proto` from `open_inference.proto`; nothing here is written by hand but that file."""
