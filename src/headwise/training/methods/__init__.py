"""Training methods: each is a `Method` with a few hooks into the training loop, imported on first use."""

from __future__ import annotations

from typing import TYPE_CHECKING

from headwise.registry import Registry

if TYPE_CHECKING:
    from headwise.training.methods.method import Method

methods: Registry[type[Method]] = Registry("method")
methods.add("plain", "headwise.training.methods.method:Method")
methods.add("iat", "headwise.training.methods.iat:IAT")
methods.add("prune_least", "headwise.training.methods.prune_least:PruneLeast")
methods.add("conflict", "headwise.training.methods.conflict:Conflict")
methods.add("distill", "headwise.training.methods.distill:Distill")
methods.add("rates", "headwise.training.methods.rates:Rates")
methods.add("scales", "headwise.training.methods.scales:Scales")
methods.add("l0", "headwise.training.methods.l0:L0")
