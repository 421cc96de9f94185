"""From raw events to numbers, verdicts and pictures. Knows workloads and engines, never the command line."""
