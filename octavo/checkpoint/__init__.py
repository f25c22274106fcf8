"""Model files, read without torch: GGUF and safetensors headers, names, configuration, catalog and downloads.

Importable from the HTTP process and the engine alike; nothing here costs more than reading a header.
"""
