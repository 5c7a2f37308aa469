/* Rules files, the patterns in them on a few names, and cuts by what they say. */
#include <stdlib.h>

#include "ckpt/cut.h"
#include "ckpt/rules.h"
#include "input.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    static const char *const names[] = {"", "layers.0.o.weight", "embed.weight", "1.norm.bias"};
    rs_rules rules = {0};
    if (rs_rules_add_file(&rules, input_file(data, size)) == RS_OK)
        for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
            const rs_rule *rule = NULL;
            const rs_vocabulary *vocabulary = NULL;
            if (rs_rules_find(&rules, names[i], &rule) == RS_OK && rule != NULL &&
                rule->kind == RS_RULE_SPLIT && (rule->parts < 1 || rule->dim < 0))
                abort();
            rs_cut cut = {0};
            if (rule != NULL && rule->shared != NULL && rs_cut_of_shared(rule, 4, &cut) == RS_OK &&
                rs_cut_total(&cut) < cut.whole)
                abort();
            rs_cut_fini(&cut);
            if (rs_rules_vocabulary(&rules, names[i], &vocabulary) != RS_OK)
                continue;
        }
    rs_rules_fini(&rules);
    return 0;
}
