"""A small language model, in NumPy or CuPy, whose attention is the workbook's or the learner's own.

model      sizes, weights, and the pieces of a forward pass, for training and serving alike
rows       the functions of rows: norm, rotary embedding, squared ReLU, cross-entropy
"""
