"""The model of all tests here, and pictures."""

from tests.use.inference.test_loaded_model import folder, model, pictures  # noqa: F401  (fixtures)
