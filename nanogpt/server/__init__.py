"""A batch engine behind HTTP: the completions part of OpenAI's interface."""
