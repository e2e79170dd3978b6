"""What ``otel-modtrack order`` does: read files, list an order, compare several."""
