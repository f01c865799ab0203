"""What is measured: time, the roofline, decoding, training, speculation, load. Parses no words."""
