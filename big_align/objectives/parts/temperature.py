"""The temperature of a softmax over cosines: a divisor as in ALIGN, or a logarithm as in CLIP.

Either is one parameter, bounded by projection after each update: a clip inside the loss would stop
its gradient permanently.
"""

import math

import jax.numpy as jnp
from jaxtyping import Array, Float

from big_align.core.types import Params


def check_bounds(temperature: float, min_temperature: float) -> None:
    """Raises a ValueError unless an initial temperature respects its bound, which is positive."""
    if not 0 < min_temperature <= temperature:
        raise ValueError(
            f"temperature = {temperature} must be at least min_temperature = "
            f"{min_temperature}, which must be positive"
        )


class Divisor:
    """Cosines are divided by a temperature (ALIGN §4.1); the parameter is `temperature`.

    One that is not learned keeps its initial value, and there is no parameter.
    """

    def __init__(self, temperature: float, min_temperature: float, learned: bool = True):
        check_bounds(temperature, min_temperature)
        self._initial, self._minimum, self._learned = temperature, min_temperature, learned

    def init(self) -> Params:
        """Makes the parameter."""
        return {"temperature": jnp.float32(self._initial)} if self._learned else {}

    def scale(self, params: Params) -> Float[Array, ""]:
        """Returns the factor of the cosines."""
        return 1 / jnp.asarray(params.get("temperature", self._initial), jnp.float32)

    def project(self, params: Params) -> Params:
        """Moves the temperature back above its bound."""
        if not self._learned:
            return params
        return {**params, "temperature": jnp.maximum(params["temperature"], self._minimum)}


class LogScale:
    """Cosines are multiplied by exp(tau) (CLIP §2.3, UniCL Alg. 1); the parameter is `log_scale`.

    The temperatures are initial value and lower bound of exp(-tau).
    """

    def __init__(self, temperature: float, min_temperature: float):
        check_bounds(temperature, min_temperature)
        self._initial, self._maximum = -math.log(temperature), -math.log(min_temperature)

    def init(self) -> Params:
        """Makes the parameter, tau."""
        return {"log_scale": jnp.float32(self._initial)}

    def scale(self, params: Params) -> Float[Array, ""]:
        """Returns exp(tau)."""
        return jnp.exp(params["log_scale"])

    def project(self, params: Params) -> Params:
        """Moves tau back below its bound."""
        return {**params, "log_scale": jnp.minimum(params["log_scale"], self._maximum)}
