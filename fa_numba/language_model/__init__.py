"""A small language model, in NumPy or CuPy, whose attention is the workbook's or the learner's own.

model          sizes, weights, and the pieces of a forward pass, for training and serving alike
latent         latent attention (MLA): the keys and values of a model from latents
gradients      the loss and its gradients, written out
rows           the functions of rows: norm, rotary embedding, squared ReLU, cross-entropy
row_kernels    the same as kernels, for a GPU; AdamW's too
products       matrix products: NumPy's, or cuBLAS called directly
jobs           attention and softmax: the jobs, or NumPy where there is no Numba
kernel_choice  the kernels of attention and softmax: the fastest, the lessons', a learner's own
text           the shipped text, files, the vocabulary of characters
train          the trainer: batches, schedule, optimizer, validation
blas_threads   one thread for products of small matrices
adamw          the optimizer
step_graph     a step on a GPU as one CUDA graph
checkpoint     a model in a file, with all that its training needs to continue
generate       sampling of one sequence, with a contiguous cache
command        fa-numba train, fa-numba generate
"""
