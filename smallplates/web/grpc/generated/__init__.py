"""Made by `make proto` from the `.proto` files beside; nothing else here is written by hand."""
