"""Engines turn a RequestPlan and a Pacing into a RunRecord. They know workloads and nobody above."""
