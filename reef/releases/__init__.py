"""ReleaseChain: the versions of each scenario and the steps that made them. A step is one transaction.

Knows nothing of what an artifact holds, of engines or of recipes. Called by scenario, the trainer and the admin routes.
"""

from reef.releases.chain import ReleaseChain
from reef.releases.rows import ScenarioRow, StepRow
from reef.releases.steps import StepCommit

__all__ = ["ReleaseChain", "ScenarioRow", "StepCommit", "StepRow"]
