"""The policies of a scheduler: what may differ between two runs of it. They rank, share and ask; the gate grants."""

from dataclasses import dataclass

from engines.scheduling.policies.admission import Admission
from engines.scheduling.policies.batching import Batching
from engines.scheduling.policies.order import Order, SkipAhead
from engines.scheduling.policies.partial_prefills import PartialPrefills
from engines.scheduling.policies.preemption import ForPriority, Pressure, Victims


@dataclass(frozen=True, slots=True)
class Policies:
    batching: Batching
    partial_prefills: PartialPrefills
    order: Order
    admission: Admission
    pressure: Pressure
    victims: Victims
    skip_ahead: SkipAhead
    priority: ForPriority
    # A request that was preempted is admitted only with all blocks that its next token needs. Otherwise it may be
    # preempted again before that, and take the tokens of the others meanwhile: then no request gets on, for ever.
    resume_whole: bool
