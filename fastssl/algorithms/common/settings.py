"""Settings that several algorithms share."""

from typing import Literal

from pydantic import Field

from fastssl.algorithms.base import Settings

Forward = Literal["together", "split"]
"""How labeled, weak and strong images pass through the network: see `losses.forward_all`."""


class WeakStrongSettings(Settings):
    """Settings of an algorithm that learns strong views from weak ones."""

    unlabeled_weight: float = Field(1.0, ge=0)
    """Weight of the unlabeled loss (lambda_u; w_u in FreeMatch)."""

    forward: Forward = "together"
    """`split` runs weak views in a pass without gradient: less work, but other numbers."""


class RampSettings(Settings):
    """Settings of an algorithm whose unlabeled loss is phased in."""

    ramp: float = Field(0.4, ge=0, le=1)
    """Share of training over which the unlabeled weight rises from 0; 0 for no ramp."""
