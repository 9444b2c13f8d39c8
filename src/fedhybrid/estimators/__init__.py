"""scikit-learn's front: `fit` and `predict` on rows that are held by several sites, with the pooled table's answer."""
