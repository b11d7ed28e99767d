"""The contrast of several positives with label smoothing, and its gradients, by hand in float64."""

import numpy as np


def contrast_by_hand(zimg, ztxt, scale, cotangents, image_label, text_label, smoothing, real):
    """Each target is (1 - smoothing) / positives on positives plus smoothing / candidates on all.

    Args:
      zimg: embeddings of images, [b d].
      ztxt: embeddings of texts, [c d].
      scale: factor of the cosines.
      cotangents: weights of the two losses in what is differentiated.
      image_label: label of each image.
      text_label: label of each text.
      smoothing: fraction of the target spread over all real candidates.
      real: the masks of the images and of the texts.

    Returns:
      Both losses, and the gradients of their weighted sum by images, texts and scale.
    """
    images, texts = (np.flatnonzero(mask) for mask in real)
    x, y = np.float64(zimg)[images], np.float64(ztxt)[texts]
    logits = scale * x @ y.T
    positive = np.asarray(image_label)[images][:, None] == np.asarray(text_label)[texts]
    losses, slopes = [], np.zeros_like(logits)
    for flip, weight in zip((np.asarray, np.transpose), cotangents, strict=True):
        queries = [n for n, row in enumerate(flip(positive)) if row.any()]
        each = []
        for n in queries:
            row, own = flip(logits)[n], flip(positive)[n]
            target = (1 - smoothing) * own / own.sum() + smoothing / len(row)
            each.append(np.log(np.exp(row).sum()) - target @ row)  # the target sums to 1
            flip(slopes)[n] += weight / len(queries) * (np.exp(row) / np.exp(row).sum() - target)
        losses.append(np.mean(each))
    zimg_grad, ztxt_grad = np.zeros(zimg.shape), np.zeros(ztxt.shape)
    zimg_grad[images], ztxt_grad[texts] = scale * slopes @ y, scale * slopes.T @ x
    return losses, (zimg_grad, ztxt_grad, (slopes * (x @ y.T)).sum())
