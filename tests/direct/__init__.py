"""Whether spans that are encoded without being made are the spans that the SDK would have made."""
