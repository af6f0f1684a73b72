"""Attention without a softmax: an example of a user's operator, with a check, mutants and two implementations.

    output_i = Σ_j φ(q_i)·φ(k_j) v_j / Σ_j φ(q_i)·φ(k_j)        with φ(x) = elu(x) + 1

Source: Katharopoulos et al., Transformers are RNNs, 2020, https://arxiv.org/abs/2006.16236, section 3.2.
"""
