"""What a run needs on a machine that is not available: topologies, HLO, costs, a table."""
