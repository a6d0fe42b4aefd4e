"""The judge of policies: traces, a simulator, the lower bound of the cost, scores and charts."""
