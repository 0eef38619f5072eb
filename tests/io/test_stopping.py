"""Ctrl-C and SIGTERM are noted or raised, and a training that is stopped leaves a checkpoint."""

from __future__ import annotations

import os
import signal
import time

import pytest
import torch

from headwise.io.stopping import Terminated
from headwise.testing import toy_model
from headwise.training import checkpoint
from headwise.training.loop import Run, fit
from headwise.training.methods.method import Method
from headwise.training.plan import Plan

PLAN = Plan(epochs=2, lr=3e-3, batch_size=16, checkpoint_every=4, evaluate_every=0, clip=1.0, weight_decay=0.01)


def weights(model) -> dict[str, torch.Tensor]:
    return {name: value.clone() for name, value in model.state_dict().items()}


def same(a: dict, b: dict) -> bool:
    return a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)


@pytest.mark.parametrize(
    ("number", "error"), [(signal.SIGINT, KeyboardInterrupt), (signal.SIGTERM, Terminated)], ids=["SIGINT", "SIGTERM"]
)
def test_a_stop_keeps_a_checkpoint_and_goes_on(tmp_path, number, error):
    class Interrupt(Method):
        def before_step(self, run: Run) -> None:
            if run.step == 5:
                os.kill(os.getpid(), number)
                time.sleep(0.01)

    whole, before = toy_model(), signal.getsignal(number)
    fit(whole, PLAN)
    with pytest.raises(error, match="same command to resume"):
        fit(toy_model(), PLAN, Interrupt(), out=tmp_path)
    assert checkpoint.load(checkpoint.list_all(tmp_path / "checkpoints")[-1])[1]["step"] == 6
    resumed = toy_model()
    fit(resumed, PLAN, out=tmp_path)
    assert same(weights(whole), weights(resumed))

    assert signal.getsignal(number) is before
