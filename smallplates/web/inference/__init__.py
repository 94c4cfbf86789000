"""The models in service, and the core call that every protocol makes."""
