"""What a run needs on a machine that is not there: topologies, HLO, costs, a table."""
