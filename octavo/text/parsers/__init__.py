"""Replies split as they stream: reasoning, content, tool calls. One machine, configured by data for each model family's format."""
