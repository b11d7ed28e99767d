"""The model of all tests here, and pictures."""

from tests.inference.test_loaded_model import folder, model, pictures  # noqa: F401  (fixtures)
