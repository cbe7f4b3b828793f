"""The kernels in lesson form: one idea per file, shared-memory tiles in plain sight, float32."""
