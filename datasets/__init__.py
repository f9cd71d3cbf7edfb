"""Scene names and folders become captures; installed as `gart.datasets`."""
