"""HarnessRuntime: keeps harness trees as artifacts and serves them; what runs them is the agent, where the user is.

Knows nothing of adapters or HTTP, and makes no steps: reef.evolve.backend, which inherits from it, does.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from reef.core.artifacts import ArtifactRef, Release, artifact_path
from reef.errors import NotFound
from reef.harness.tree import FILE, Tree
from reef.runtime import Capabilities, Outcome, Prepared, Skip, StepRequest
from reef.train.torch_runtime import artifacts


def read_tree(home: Path, content_id: str) -> Tree:
    """The tree of an artifact; raises NotFound when it is gone, or is not what its name says."""
    path = artifact_path(home, content_id) / FILE
    try:
        found = Tree.from_json(path.read_bytes())
    except FileNotFoundError:
        raise NotFound(f"the files of {content_id[:12]} are gone", hint="roll back to another release") from None
    if found.content_id != content_id:
        raise NotFound(f"{path} is not what was written", hint="restore it from a backup: reef verify")
    return found


def keep_tree(home: Path, tree: Tree) -> ArtifactRef:
    """Write a tree as an artifact, durably; one that is there stays as it is."""
    folder = artifacts.temporary(home, f"tree-{tree.content_id}")
    (folder / FILE).write_text(tree.to_json(), encoding="utf-8")
    manifest = {"surface": "harness", "files": artifacts.file_hashes(folder)}
    return artifacts.keep(home, folder, tree.content_id, manifest)


class HarnessRuntime:
    """One scenario's trees below ``home``, beginning with ``seed``. ``home`` None keeps nothing, for tests in memory."""

    def __init__(self, home: Path | None, seed: Tree) -> None:
        self._home, self._seed = home, seed
        if home is not None:
            keep_tree(home, seed)

    def capabilities(self) -> Capabilities:
        """The harness surface; r0 is the seed."""
        return Capabilities("harness", base_content_id=self._seed.content_id)

    def prepare(self, request: StepRequest) -> Prepared:
        """Nothing to validate."""
        return Prepared(request)

    def step(self, prepared: Prepared) -> Outcome:
        """No step is made."""
        return Skip("no_evolution: this recipe makes no steps")

    def publish(self, release: Release) -> None:
        """Serve a tree: it must be there, and be what its name says. Agents take it up at their next start."""
        if self._home is not None:
            read_tree(self._home, release.content_id)

    def settle(self, step_id: str, content_id: str | None) -> None:
        """Nothing is left over."""

    def recover(self, heads: Sequence[Release]) -> None:
        """Serve each head again."""
        for release in heads:
            self.publish(release)
