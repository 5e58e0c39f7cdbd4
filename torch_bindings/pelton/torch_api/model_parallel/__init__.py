"""Models whose parts lie on different ranks: mixtures of experts (`moe`)."""
