/* Memory of a decoding: totals over batch headers, and one block of memory divided into columns. */
#include "codec/batch.h"

/* ---- Survey ---------------------------------------------------------------------------------- */

void el_survey_batches(const el_batch *batches, int64_t count, el_survey *survey) {
    memset(survey, 0, sizeof *survey);
    survey->bad = -1;
    for (int64_t i = 0; i < count; i++) {
        const el_batch *batch = &batches[i];
        int64_t body = (int64_t)batch->size - EL_HEADER_SIZE;
        int compressed = (batch->attributes & CODEC_MASK) != 0;
        int old = batch->magic != MAGIC;
        survey->records += batch->records;
        survey->body_size += body;
        if (batch->attributes & CONTROL_BATCH) {
            survey->kinds |= EL_HAS_CONTROL;
        }
        if (compressed) {
            survey->kinds |= EL_HAS_COMPRESSED;
        }
        if (old) {
            survey->kinds |= EL_HAS_LEGACY;
        }
        if (i > 0 && batch->position <= batches[i - 1].position) {
            survey->kinds |= EL_UNORDERED;
        }
        int impossible = batch->records < 0 ||
                         (!compressed && !old && batch->records > body / EL_RECORD_SIZE_MIN);
        if (impossible && survey->bad < 0) {
            survey->bad = i;
        }
    }
}

/* ---- Layout ---------------------------------------------------------------------------------- */

#define ALIGNMENT 64 /* what Arrow recommends, and a cache line */

typedef struct {
    uint8_t *memory;
    int64_t size;
    int64_t *starts;
} el_cutter;

static void *cut_off(el_cutter *cutter, int wanted, int64_t size) {
    int64_t start = cutter->size;
    *cutter->starts++ = start;
    if (!wanted) {
        return NULL;
    }
    cutter->size += (size + ALIGNMENT - 1) & ~(int64_t)(ALIGNMENT - 1);
    return cutter->memory ? cutter->memory + start : NULL;
}

int64_t el_lay_out(el_columns *columns, int32_t wanted, int64_t records, int64_t body_size,
                   uint8_t *memory, int64_t *starts) {
    el_cutter cutter = {memory, 0, starts};
    int64_t bitmap = (records + 7) / 8;
    columns->offsets = cut_off(&cutter, wanted & EL_WANT_OFFSET, 8 * records);
    columns->timestamps = cut_off(&cutter, wanted & EL_WANT_TIMESTAMP, 8 * records);
    columns->timestamp_types = cut_off(&cutter, wanted & EL_WANT_TIMESTAMP_TYPE, records);
    columns->leader_epochs = cut_off(&cutter, wanted & EL_WANT_LEADER_EPOCH, 4 * records);
    columns->header_starts = cut_off(&cutter, wanted & EL_WANT_HEADERS, 4 * (records + 1));
    columns->key_offsets = cut_off(&cutter, wanted & EL_WANT_KEY, 4 * (records + 1));
    columns->key_validity = cut_off(&cutter, wanted & EL_WANT_KEY, bitmap);
    columns->value_offsets = cut_off(&cutter, wanted & EL_WANT_VALUE, 4 * (records + 1));
    columns->value_validity = cut_off(&cutter, wanted & EL_WANT_VALUE, bitmap);
    /* The data is last: its unused rest is contiguous and untouched. */
    columns->value_data = cut_off(&cutter, wanted & EL_WANT_VALUE_DATA, body_size);
    columns->key_data = cut_off(&cutter, wanted & EL_WANT_KEY, body_size);
    columns->record_capacity = records;
    columns->key_capacity = columns->value_capacity = body_size;
    return cutter.size;
}
