"""The field `embedding`: a vector for each position, which the caller adds."""

from posenc_lib.embedding.convolutional import PEG, ConvolutionalEmbedding
from posenc_lib.embedding.fourier import (
    LearnableFourier,
    gaussian_matrix,
    nerf,
    perceiver_fourier,
    random_fourier,
    timestep,
)
from posenc_lib.embedding.graph import (
    laplacian,
    laplacian_eigenvectors,
    random_signs,
    random_walk,
    signnet,
)
from posenc_lib.embedding.grid import LearnedGrid, resize_grid, sinusoidal_grid
from posenc_lib.embedding.learned import LearnedEmbedding
from posenc_lib.embedding.sinusoidal import sinusoidal, sinusoidal_tensor2tensor

__all__ = [
    "PEG",
    "ConvolutionalEmbedding",
    "LearnableFourier",
    "LearnedEmbedding",
    "LearnedGrid",
    "gaussian_matrix",
    "laplacian",
    "laplacian_eigenvectors",
    "nerf",
    "perceiver_fourier",
    "random_fourier",
    "random_signs",
    "random_walk",
    "resize_grid",
    "signnet",
    "sinusoidal",
    "sinusoidal_grid",
    "sinusoidal_tensor2tensor",
    "timestep",
]
