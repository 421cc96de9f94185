"""The simulated engine: the same scheduler, pacing and records on a virtual clock, with a model of step times."""
