"""Tool calls in the text of a model (vLLM: tool parsers, `ToolParser`): the form of each template
family, and the parser of an answer."""
