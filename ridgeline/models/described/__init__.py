"""Families that are described for planning and not run yet: config -> ModelSpec, without tensor names."""
