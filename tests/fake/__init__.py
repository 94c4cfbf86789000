"""A service whose backend obeys its pictures: `python -m smallplates.service tests.fake`."""

BACKEND = "tests.fake.backend:FakeBackend"
