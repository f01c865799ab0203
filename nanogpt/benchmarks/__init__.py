"""What is measured: timing, the roofline, decoding, training, speculation. Parses no arguments."""
