"""What things cost: the ladder, the roofline, load, speculation, training."""
