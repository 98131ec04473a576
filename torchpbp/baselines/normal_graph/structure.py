"""Normal graphs: branches that carry variables, and the blocks and diverters that they connect [NG 2]."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from torchpbp.errors import StructureError

Direction = Literal["forward", "backward"]
Message = tuple[str, Direction]
"""A message: its branch, and its direction relative to the branch's arrow."""


def messages_on(branch: str) -> tuple[Message, Message]:
    """The forward and the backward message of a branch."""
    return (branch, "forward"), (branch, "backward")


@dataclass(frozen=True, eq=False)
class Block:
    """A single-input/single-output block: the matrix P(output | input).

    A source is a block whose input has one state: its only row is the prior.

    Args:
        name: name of the block's matrix among the parameters.
        input: branch that leads into the block.
        output: branch that leaves the block.
        fixed: (states of input, states of output) matrix that is not learned; None for a learned matrix.
    """

    name: str
    input: str
    output: str
    fixed: Tensor | None = None

    @property
    def branches(self) -> tuple[str, str]:
        return (self.input, self.output)


@dataclass(frozen=True)
class Diverter:
    """An equality constraint: all its branches carry the same variable.

    Args:
        inputs: branches that lead into the diverter.
        outputs: branches that leave the diverter.
    """

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]

    @property
    def branches(self) -> tuple[str, ...]:
        return (*self.inputs, *self.outputs)


@dataclass(frozen=True)
class Round:
    """Messages of one node along the branches ``outgoing``."""

    node: Block | Diverter
    outgoing: tuple[str, ...]


class NormalGraph:
    """A cycle-free factor graph in normal form.

    A branch leads from one node to another. An end of a branch without a node is *free*: information enters there.

    Args:
        states: branch -> number of states.
        blocks: the factors.
        diverters: the equality constraints.
        log_constant: logarithm of the factor by which fixed matrices scale all joint probabilities.

    Attributes:
        rounds: nodes and their outgoing messages, in an order in which each message depends on earlier rounds only.

    Raises:
        StructureError: unknown branches, an end joined twice, matrices or diverters of different sizes, or a loop.
    """

    def __init__(
        self,
        states: Mapping[str, int],
        blocks: Iterable[Block],
        diverters: Iterable[Diverter] = (),
        log_constant: float = 0.0,
    ) -> None:
        self.states = dict(states)
        self.blocks: dict[str, Block] = {}
        for block in blocks:
            if block.name in self.blocks:
                raise StructureError(f"Two blocks are called '{block.name}'. Give each a name of its own.")
            self.blocks[block.name] = block
        self.diverters = tuple(diverters)
        self.log_constant = log_constant
        self.head: dict[str, Block | Diverter] = {}  # node at the end of a branch
        self.tail: dict[str, Block | Diverter] = {}  # node at its beginning
        nodes: list[Block | Diverter] = [*self.blocks.values(), *self.diverters]
        for node in nodes:
            inputs = node.inputs if isinstance(node, Diverter) else (node.input,)
            outputs = node.outputs if isinstance(node, Diverter) else (node.output,)
            for branch in inputs:
                self._join(self.head, branch, node, "leads to")
            for branch in outputs:
                self._join(self.tail, branch, node, "comes from")
            self._check_sizes(node)
        self.components = self._components()
        self.rounds = self._rounds()

    @property
    def learnable(self) -> dict[str, tuple[int, int]]:
        """Block -> shape of its matrix, for the blocks that learn."""
        return {b.name: (self.states[b.input], self.states[b.output]) for b in self.blocks.values() if b.fixed is None}

    def free_ends(self) -> list[Message]:
        """Messages from outside: one for each end of a branch without a node."""
        ends: list[Message] = [(branch, "forward") for branch in self.states if branch not in self.tail]
        return ends + [(branch, "backward") for branch in self.states if branch not in self.head]

    def split(self, branch: str, tap: str) -> NormalGraph:
        """The same graph with a diverter on a branch, and a new free branch for reading or injecting messages [NG 2.2].

        Args:
            branch: branch to split; its first half keeps the name, the second is named ``<branch>'`` (or more primes).
            tap: name of the new branch.
        """
        self._require_known(branch)
        if tap in self.states:
            raise StructureError(f"split: the graph has a branch '{tap}' already. Choose another name.")
        second = f"{branch}'"
        while second in self.states or second == tap:
            second += "'"
        states = {**self.states, second: self.states[branch], tap: self.states[branch]}
        reader = self.head.get(branch)
        blocks = [Block(b.name, second if b is reader else b.input, b.output, b.fixed) for b in self.blocks.values()]
        diverters = [
            Diverter(tuple(second if i == branch else i for i in d.inputs), d.outputs) if d is reader else d
            for d in self.diverters
        ]
        return NormalGraph(states, blocks, [*diverters, Diverter((branch,), (second, tap))], self.log_constant)

    # -- order of messages ---------------------------------------------------------------------------------------

    def _rounds(self) -> tuple[tuple[Round, ...], ...]:
        """Rounds of messages: a node sends along a branch after it has received messages from all other branches."""
        nodes: list[Block | Diverter] = [*self.blocks.values(), *self.diverters]
        missing = {
            id(n): dict.fromkeys(n.branches) for n in nodes
        }  # branches without a received message, in a fixed order
        unsent = {id(n): dict.fromkeys(n.branches) for n in nodes}
        for branch, direction in self.free_ends():
            node = self.head.get(branch) if direction == "forward" else self.tail.get(branch)
            if node is not None:
                del missing[id(node)][branch]
        rounds = []
        awake = nodes
        while awake:
            current = []
            for node in awake:
                silent, left = missing[id(node)], unsent[id(node)]
                ready = tuple(left) if not silent else tuple(b for b in silent if len(silent) == 1 and b in left)
                if ready:
                    current.append(Round(node, ready))
            if current:
                rounds.append(tuple(current))
            heard: dict[int, Block | Diverter] = {}
            for item in current:
                for branch in item.outgoing:
                    del unsent[id(item.node)][branch]
                    other = self.head.get(branch) if self.tail.get(branch) is item.node else self.tail.get(branch)
                    if other is not None:
                        del missing[id(other)][branch]
                        heard[id(other)] = other
            awake = list(heard.values())
        return tuple(rounds)

    def _components(self) -> tuple[str, ...]:
        """One branch of each connected component; a loop raises a StructureError.

        In a graph of branches and nodes without loops, a traversal visits no node twice.
        """
        seen_branches: set[str] = set()
        seen_nodes: set[int] = set()
        firsts = []
        for first in self.states:
            if first in seen_branches:
                continue
            firsts.append(first)
            seen_branches.add(first)
            stack: list[tuple[str, Block | Diverter]] = [
                (first, end[first]) for end in (self.tail, self.head) if first in end
            ]
            while stack:
                branch, node = stack.pop()
                if id(node) in seen_nodes:
                    raise StructureError(
                        f"The normal graph has a loop through branch '{branch}'. Messages are exact without loops only; "
                        "join the variables of the loop into one product-space variable."
                    )
                seen_nodes.add(id(node))
                for other in node.branches:
                    if other == branch:
                        continue
                    seen_branches.add(other)
                    far = self.head.get(other) if self.tail.get(other) is node else self.tail.get(other)
                    if far is not None:
                        stack.append((other, far))
        return tuple(firsts)

    # -- checks --------------------------------------------------------------------------------------------------

    def _join(self, ends: dict[str, Block | Diverter], branch: str, node: Block | Diverter, what: str) -> None:
        self._require_known(branch)
        if branch in ends:
            raise StructureError(f"Branch '{branch}' {what} two nodes. Replicate its variable with a diverter.")
        ends[branch] = node

    def _check_sizes(self, node: Block | Diverter) -> None:
        sizes = [self.states[b] for b in node.branches]
        if isinstance(node, Diverter):
            if len(set(sizes)) > 1 or len(sizes) < 2:
                raise StructureError(
                    f"Diverter of {list(node.branches)}: expected two or more branches with one number of states, got {sizes}."
                )
        elif node.fixed is not None and list(node.fixed.shape) != sizes:
            raise StructureError(
                f"Block '{node.name}': expected a matrix of shape {tuple(sizes)}, got {tuple(node.fixed.shape)}."
            )

    def _require_known(self, branch: str) -> None:
        if branch not in self.states:
            raise StructureError(f"Unknown branch '{branch}'. The graph has: {', '.join(self.states)}.")
