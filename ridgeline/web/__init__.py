"""The labs as pages and as JSON. Shows what `planner` computes, and computes nothing itself."""
