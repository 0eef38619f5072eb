"""Four papers, one folder each: jobs, tables, published numbers, and the methods that only that paper needs.

The core never imports this package. It registers its methods and works as any plug-in does (`headwise.registry`).
"""

from headwise.experiments.jobs import works
from headwise.training.methods import methods

# Version 2 of `apart` tests over random head sets, not development rows alone; of `tuned` it probes top heads too.
WORKS = {
    "anatomy": ("along", "controlled", "inventory", "probed", "tuned"),
    "mesh": ("train", "apart", "retrieved"),
    "methods": ("confirmed", "merged", "untrained"),
    "specialization": (
        *("distilled", "estimator", "few_shot", "inventory", "likeness", "mismatched", "mtdnn", "onto", "relabelling"),
        *("closings", "rounds", "submission"),
    ),
    "stem_cell": ("probed", "trained"),
    "together": ("signals", "trained"),
}
VERSIONS = {"anatomy.tuned": 2, "mesh.apart": 2}

for _paper, _names in WORKS.items():
    for _name in _names:
        works.add(f"{_paper}.{_name}", f"headwise.papers.{_paper}.works:{_name}", VERSIONS.get(f"{_paper}.{_name}", 1))
methods.add("iat_released", "headwise.papers.specialization.released:ReleasedIAT")
methods.add("released_settings", "headwise.papers.specialization.released:ReleasedSettings")
methods.add("updates", "headwise.papers.methods.updates:Updates")
methods.add("meta", "headwise.papers.mesh.meta:Meta")
