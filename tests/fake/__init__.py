"""A service whose backend obeys its pictures: `python -m serving tests.fake`."""

BACKEND = "tests.fake.backend:FakeBackend"
