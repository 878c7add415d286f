"""Settings that several algorithms share."""

from typing import Literal, Self

from pydantic import Field, model_validator

from fastssl.algorithms.base import Settings

Forward = Literal["together", "split", "skip"]
"""How labeled, weak and strong images pass through the network: see `losses.Passes`."""


class WeakStrongSettings(Settings):
    """Settings of an algorithm that learns strong views from weak ones."""

    unlabeled_weight: float = Field(1.0, ge=0)
    """Weight of the unlabeled loss (lambda_u; w_u in FreeMatch)."""

    forward: Forward = "together"
    """`split` runs weak views in a pass without gradient: less work, but other numbers. `skip` also
    leaves out strong views of images that are not trusted: BatchNorm does not see them."""

    slots: int = Field(0, ge=0)
    """Strong views in a step at most, over all ranks, with forward=skip (in each part of
    accumulate); trusted images beyond them are left out. 0: all. The papers have no such limit."""

    pseudo_labels: Literal["student", "teacher"] = "student"
    """Network that predicts the weak views, with batch statistics; teacher: the EMA model, which
    needs forward=split or skip. The papers use the student."""

    @model_validator(mode="after")
    def _passes_are_possible(self) -> Self:
        if self.pseudo_labels == "teacher" and self.forward == "together":
            raise ValueError("pseudo_labels=teacher needs forward=split or forward=skip")
        if self.slots and self.forward != "skip":
            raise ValueError("slots needs forward=skip")
        return self


class AlignmentSettings(WeakStrongSettings):
    """Settings of an algorithm that can align predictions to equal class frequencies."""

    alignment: bool = False
    """Multiply predictions on weak views by uniform over their running mean, and normalize, before
    pseudo-labels are taken; for balanced data only. FixMatch and FlexMatch do not: it is
    ReMixMatch's distribution alignment."""

    alignment_decay: float = Field(0.999, ge=0, lt=1)
    """Decay of the running mean of predictions that `alignment` uses."""


class RampSettings(Settings):
    """Settings of an algorithm whose unlabeled loss is phased in."""

    ramp: float = Field(0.4, ge=0, le=1)
    """Share of training over which the unlabeled weight rises from 0; 0 for no ramp."""
