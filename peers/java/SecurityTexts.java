import java.nio.charset.StandardCharsets;
import java.util.Base64;
import java.util.Map;
import java.util.Scanner;
import java.util.TreeMap;
import org.apache.kafka.common.config.types.Password;
import org.apache.kafka.common.security.JaasContext;
import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * What Kafka makes of settings: a line `mapping RULES NAME` is answered with the user, `jaas TEXT` with the options, key and
 * value in turn, and `-` is a refusal. Everything behind the first word is base64, and ends with a dot, so that nothing is
 * a word too.
 */
public class SecurityTexts {
    public static void main(String[] arguments) {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            String answer;
            try {
                answer = words[0].equals("mapping") ? user(decoded(words[1]), decoded(words[2])) : options(decoded(words[1]));
            } catch (Exception refusal) {
                answer = "-";
            }
            System.out.println(answer);
        }
    }

    private static String user(String rules, String name) throws Exception {
        return encoded(SslPrincipalMapper.fromRules(rules).getName(name));
    }

    private static String options(String text) {
        var context = JaasContext.loadClientContext(Map.of("sasl.jaas.config", new Password(text)));
        StringBuilder answer = new StringBuilder(".");
        new TreeMap<String, Object>(context.configurationEntries().get(0).getOptions())
            .forEach((key, value) -> answer.append(" ").append(encoded(key)).append(" ").append(encoded(value.toString())));
        return answer.toString();
    }

    private static String decoded(String word) {
        String text = word.substring(0, word.length() - 1);
        return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
    }

    private static String encoded(String text) {
        return Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8)) + ".";
    }
}
