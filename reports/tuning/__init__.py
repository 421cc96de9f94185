"""Searching the best setting under an SLA, by rules that say why."""
