"""Files for other viewers, read by other roads than ours and compared with the spans."""
