"""From a model to tokens: sampling, the decoder protocol, speculation. Knows no engine."""
